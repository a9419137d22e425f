"""Tests of what a server must do, requirement by requirement."""
