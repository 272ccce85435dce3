"""Paper model of speed on DGX Sparks:
step time and prefill rate from bytes, bandwidth and collectives. Pure."""
