"""Work on the project itself: releases and the documentation site. Not part of the package."""
