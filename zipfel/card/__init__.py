"""Model cards: `README.md` of a saved model, for people and for the Hugging Face Hub."""
