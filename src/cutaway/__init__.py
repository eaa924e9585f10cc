"""Cutaway: the Qwen-VL models with the insides showing.

The public names, loaded when first used so that ``import cutaway`` stays quick. This module holds no code of its own.
"""
