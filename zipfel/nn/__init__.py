"""What learns: encoders, classifiers, losses and regularizers (pure functions), optimisers."""
