/** Every operation of the service: routing, the CapabilityStatement and checks read this table. */
import type { Operation } from '../operation.ts'
import { init } from './init.ts'

export const operations: readonly Operation[] = [init]
