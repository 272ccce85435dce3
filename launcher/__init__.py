"""sparkctl: plans, starts and supervises SGLang clusters."""
