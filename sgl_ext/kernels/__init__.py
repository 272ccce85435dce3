"""Plain PyTorch (and, on a GPU, Triton) forms of what DeepSeek-V4.1 computes outside standard layers."""
