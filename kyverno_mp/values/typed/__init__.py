"""Merge apply configurations with objects, by the types of their kinds."""
