"""The two halves of a vision-language checkpoint as torch modules: `tower.Tower` and `language.LanguageModel`.

Each half reads only its own tensors. Import the modules by name; this package itself imports nothing.
"""
