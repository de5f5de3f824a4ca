"""Plain torch twins of the Triton kernels: same file names, same signatures, any device."""
