# coll/ - MPIX_Ep_*.
