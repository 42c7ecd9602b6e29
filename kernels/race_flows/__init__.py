"""What each token gets at nodes whose siblings are judged as one set."""
