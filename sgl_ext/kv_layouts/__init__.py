"""DeepSeek-V4.1's own KV layouts (528 and 288 bytes a token) on sm_12x, behind a check at boot."""
