"""What entries are added with: pending adds, ensemble changes, follow-up."""
