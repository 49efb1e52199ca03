"""From captions to an evaluated model in resumable stages, and the text generator of the demo."""
