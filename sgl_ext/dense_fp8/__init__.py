"""The kernel of the linear layers in FP8 with blocks of 32 x 32, checked at boot and chosen by all ranks."""
