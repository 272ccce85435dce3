"""One file per hooked SGLang target; each holds one HOOK."""
