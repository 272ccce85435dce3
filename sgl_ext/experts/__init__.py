"""MXFP4 routed experts: candidates behind one interface, a reference, and the choice between them at boot."""
