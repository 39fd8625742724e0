"""The fault campaign: kinds of fault, each played on a real job at a random moment, and judged. `make chaos` plays them."""
