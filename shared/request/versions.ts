/** FHIR versions served: https://hl7.org/fhir/R4/capabilitystatement-operation-versions.html */
import type { Operation } from './operation.ts'
import { jsonReply } from './reply.ts'

export const versions: Operation = {
  name: 'versions',
  on: [{ level: 'system' }],
  standard: 'CapabilityStatement',
  methods: ['GET'],
  ownFormat: true,
  async run() {
    const body = { versions: ['4.0'], default: '4.0' }
    return jsonReply(200, body, { 'Content-Type': 'application/json; charset=utf-8' })
  },
}
