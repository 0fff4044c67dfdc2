/**
 * Input: `{ patient, reason }`. Closes the chart of a departing patient: deletes proposed appointments,
 * counts the other resources, and stores a Flag with the reason. The reason must be a code of a published value set.
 */
import {
  type BotEvent,
  badRequest,
  type MedplumClient,
  normalizeErrorString,
  OperationOutcomeError,
} from '@medplum/core'
import type { Flag } from '@medplum/fhirtypes'

const REASONS = 'http://hl7.org/fhir/ValueSet/encounter-discharge-disposition'

export async function handler(
  medplum: MedplumClient,
  event: BotEvent<{ patient: string; reason: string }>,
) {
  const { patient, reason } = event.input
  const { expansion } = await medplum.valueSetExpand({ url: REASONS })
  const coding = expansion?.contains?.find(({ code }) => code === reason)
  if (coding === undefined) throw new OperationOutcomeError(badRequest('No such reason', 'reason'))

  const flag: Flag = {
    resourceType: 'Flag',
    status: 'active',
    code: { coding: [{ system: coding.system, code: coding.code, display: coding.display }] },
    subject: { reference: `Patient/${patient}` },
  }
  try {
    await medplum.validateResource(flag)
  } catch (error) {
    return { closed: false, why: normalizeErrorString(error) }
  }
  const chart = await medplum.readPatientEverything(patient)
  const resources = (chart.entry ?? []).flatMap(({ resource }) => resource ?? [])
  const planned = resources.filter(
    ({ resourceType, status }: { resourceType: string; status?: string }) =>
      resourceType === 'Appointment' && status === 'proposed',
  )
  for (const { resourceType, id } of planned) await medplum.deleteResource(resourceType, id ?? '')
  const kept = await medplum.createResource(flag)
  return {
    closed: true,
    flag: kept.id,
    deleted: planned.length,
    left: resources.length - planned.length,
  }
}
