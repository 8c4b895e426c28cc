"""`zipfel predict --engine`: tag many files, part by part, with several processes, into a folder."""
