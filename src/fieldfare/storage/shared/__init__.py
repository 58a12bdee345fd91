"""A copy of the index files that other machines can read: in a shared folder, S3 or HDFS."""
