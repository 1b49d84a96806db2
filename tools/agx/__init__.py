"""The kernels as machine code of Apple's M1, made on Linux by Mesa's open-source compiler: `make agx`."""
