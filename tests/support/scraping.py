"""What a metrics port answers, as figures."""

import asyncio
import re
import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from support.servers import ServerProcess


@dataclass(frozen=True)
class Figures:
    """Values of one scrape, by sample name and labels."""

    values: dict[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def of(cls, text: str) -> "Figures":
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        assert len(values) == len(samples), "a series is there twice"
        return cls(values)

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the series that have these labels (and others); 0 if there is none."""
        wanted = set(labels.items())
        return sum(value for (found, own), value in self.values.items() if found == name and wanted <= own)

    def labels(self, name: str, label: str) -> set[str]:
        """The values of a label."""
        return {dict(own)[label] for found, own in self.values if found == name}


def metrics_url(server: ServerProcess) -> str:
    """Where the server serves its metrics, as its log says."""
    found = re.search(r"http://[^\s\"]+", server.wait_for_log("metrics at "))
    assert found is not None
    return found.group()


async def scrape(url: str) -> Figures:
    """The figures now."""
    return Figures.of(await scrape_text(url))


async def scrape_text(url: str) -> str:
    """What it answers, as it is."""

    def read() -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)
