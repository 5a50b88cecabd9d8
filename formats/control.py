"""Ops made of other ops."""
