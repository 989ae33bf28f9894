"""The registry's machine under an hour of traffic, on a virtual clock: `make sim` prints what each strategy costs."""
