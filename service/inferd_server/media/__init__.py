"""MEDIA: between bytes and pictures. Pillow only, no arrays; no path and no URL is ever opened."""
