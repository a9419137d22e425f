//! Wire format, session core and transport providers of dafs.
