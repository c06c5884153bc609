# Unit tests of coll/.
