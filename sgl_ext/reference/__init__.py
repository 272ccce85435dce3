"""DeepSeek-V4.1's forward pass written from its definition: no SGLang, no caches, no pages, one sequence at
once.

The engine's logits are compared with it. It shares no code with sgl_ext.kernels, so that a mistake there
shows.
"""
