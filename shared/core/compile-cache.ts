/** V8's compile cache, kept between starts. Loaded by `--import`: a program's imports compile before its code runs. */
import { enableCompileCache } from 'node:module'
import { join } from 'node:path'

/** Next to the code, never in a folder writable by other accounts; may be read-only. */
enableCompileCache(join(import.meta.dirname, '../../node_modules/.cache/compile'))
