"""The command line: one file per subcommand; it prints, it never decides."""
