/**
 * Input: text with one patient per line, `number;family;given;birth date`. Answer: the number of new patients, and the
 * rejected lines.
 */
import type { BotEvent, MedplumClient } from '@medplum/core'
import type { BundleEntry } from '@medplum/fhirtypes'

const system = 'https://example.org/fhir/sid/register'

export async function handler(medplum: MedplumClient, event: BotEvent<string>) {
  const lines = event.input.split(/\r?\n/).filter((line) => line.trim() !== '')
  const reply = await medplum.executeBatch({
    resourceType: 'Bundle',
    type: 'batch',
    entry: lines.map(toEntry),
  })
  const statuses = (reply.entry ?? []).map((entry) => entry.response?.status?.slice(0, 3))
  return {
    created: statuses.filter((status) => status === '201').length,
    known: statuses.filter((status) => status === '200').length,
    refused: lines.filter((_, at) => Number(statuses[at]) >= 400),
  }
}

function toEntry(line: string): BundleEntry {
  const [value = '', family = '', given = '', birthDate = ''] = line.split(';')
  return {
    request: { method: 'POST', url: 'Patient', ifNoneExist: `identifier=${system}|${value}` },
    resource: {
      resourceType: 'Patient',
      identifier: [{ system, value }],
      name: [{ family, given: [given] }],
      birthDate,
    },
  }
}
