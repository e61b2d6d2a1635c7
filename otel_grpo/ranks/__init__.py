"""The other processes of a job, told by the files that they write and never asked."""
