#if defined(__clang__) && defined(ISA_TARGET)
PRAGMA(clang attribute pop)
#elif defined(ISA_TARGET)
PRAGMA(GCC pop_options)
#endif
