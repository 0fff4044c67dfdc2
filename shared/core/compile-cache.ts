/**
 * V8's compiled code of our modules, kept from one start to the next, which takes half of the work off a
 * start. Node loads this file before the program's own (`--import`), since the imports of a program are
 * compiled before its first statement runs.
 */
import { enableCompileCache } from 'node:module'
import { join } from 'node:path'

/** Beside the code, never in a folder where another account could leave code; read-only is fine, too. */
enableCompileCache(join(import.meta.dirname, '../../node_modules/.cache/compile'))
