/** Every operation of the service: routing, the CapabilityStatement and checks read this table. */
import type { Operation } from '../operation.ts'

export const operations: readonly Operation[] = []
