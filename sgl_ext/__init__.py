"""SGLang plugin of sparkctl."""
