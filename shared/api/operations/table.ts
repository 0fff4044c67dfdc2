/** Every operation of the service: routing, the CapabilityStatement and checks read this table. */
import type { Operation } from '../operation.ts'
import { execute } from './execute.ts'
import { versions } from './versions.ts'

export const operations: readonly Operation[] = [execute, versions]
