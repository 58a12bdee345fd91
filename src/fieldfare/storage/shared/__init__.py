"""Index files where other machines reach them: a folder that several share, S3, HDFS."""
