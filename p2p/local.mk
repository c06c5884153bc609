# p2p/ - MPIX_P2p_*.
