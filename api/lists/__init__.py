"""Lists as jobs: uploaded whole, verified in the background, fetched when and as one likes."""
