/** `$reindex`: what searches find is made anew from what is stored. */

import { allOk, forbidden } from '../errors.ts'
import type { Operation } from '../request/operation.ts'
import { outcomeReply } from '../request/reply.ts'
import { startUpkeep } from './long-jobs.ts'
import { createMaintenance } from './upkeep/maintenance.ts'

/** One resource at once, by an admin; a type or all of them by a worker, for a super admin. */
export const reindex: Operation = {
  name: 'reindex',
  on: [{ level: 'system' }, { level: 'type' }, { level: 'instance' }],
  methods: ['POST'],
  area: 'administration',
  async run(call) {
    const { services, principal, type = '', id } = call
    if (id === undefined) {
      if (!principal.isSuperAdmin) throw forbidden()
      return startUpkeep(call, 'reindex', principal.project.id)
    }
    await services.repository.feature(createMaintenance).reindex(principal, type, id)
    return outcomeReply(200, allOk)
  },
}
