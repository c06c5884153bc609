# Unit tests of kernels/host/.
