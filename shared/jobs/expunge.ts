/** `$expunge`: a resource with its history, or a whole compartment or Project, is gone for good. */

import { allOk, badRequest, forbidden } from '../errors.ts'
import { COMPARTMENTS } from '../fhir/definitions.ts'
import type { Operation } from '../request/operation.ts'
import { readInputs } from '../request/parameters.ts'
import { outcomeReply } from '../request/reply.ts'
import { platformMeta } from '../store/rows/version.ts'
import { startUpkeep } from './long-jobs.ts'
import { createMaintenance } from './upkeep/maintenance.ts'

export const expunge: Operation = {
  name: 'expunge',
  on: [{ level: 'instance' }],
  methods: ['POST'],
  area: 'administration',
  async run(call) {
    const { services, principal, type = '', id = '' } = call
    const { repository } = services
    const everything = readInputs(call, [{ name: 'everything', kind: 'flag' }]).flag('everything')
    if (type !== 'Project' && !everything) {
      await repository.feature(createMaintenance).expunge(principal, type, id)
      return outcomeReply(200, allOk)
    }
    if (!principal.isProjectAdmin) throw forbidden()
    if (type === 'Project') {
      if (!principal.isSuperAdmin) throw forbidden()
      await repository.read(principal, type, id)
      if (id === principal.project.id) throw badRequest('This Project cannot be expunged')
      return startUpkeep(call, 'expunge', id)
    }
    if (!COMPARTMENTS.some((name) => name === type)) {
      throw badRequest(`${type} has no compartment; only ${COMPARTMENTS.join(', ')} have`)
    }
    const { project } = platformMeta(await repository.read(principal, type, id))
    return startUpkeep(call, 'expunge', project ?? principal.project.id)
  },
}
