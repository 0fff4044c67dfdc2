/** Every operation of the service: routing, the CapabilityStatement and checks read this table. */
import { cancel } from '../jobs.ts'
import type { Operation } from '../operation.ts'
import { deploy } from './deploy.ts'
import { execute } from './execute.ts'
import { expand } from './expand.ts'
import { init } from './init.ts'
import { lookup, subsumes } from './lookup.ts'
import { meta, metaAdd, metaDelete } from './meta.ts'
import { validateCode } from './validate-code.ts'
import { versions } from './versions.ts'

export const operations: readonly Operation[] = [
  cancel,
  deploy,
  execute,
  expand,
  init,
  lookup,
  meta,
  metaAdd,
  metaDelete,
  subsumes,
  validateCode,
  versions,
]
