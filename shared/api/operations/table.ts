/** Every operation of the service: routing, the CapabilityStatement and checks read this table. */
import { cancel } from '../jobs.ts'
import type { Operation } from '../operation.ts'
import { deploy } from './deploy.ts'
import { execute } from './execute.ts'
import { init } from './init.ts'
import { meta, metaAdd, metaDelete } from './meta.ts'
import { versions } from './versions.ts'

export const operations: readonly Operation[] = [
  cancel,
  deploy,
  execute,
  init,
  meta,
  metaAdd,
  metaDelete,
  versions,
]
