# Unit tests of src/.
