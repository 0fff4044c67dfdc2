/** Search over records, bots and pages, opened by Ctrl-K or ⌘K. */
import { Button, Kbd, Modal } from '@mantine/core'
import { useDisclosure, useHotkeys } from '@mantine/hooks'
import { lazy, Suspense, useState } from 'react'
import { texts } from '../texts/texts.ts'
import type { Place } from './finder-search.tsx'
import { Waiting } from './loaded.tsx'

const words = texts.finder
const Search = lazy(() =>
  import('./finder-search.tsx').then(({ Search: search }) => ({ default: search })),
)

interface Props {
  /** The pages of the menu. */
  readonly pages: readonly Place[]
}

export function Finder({ pages }: Props) {
  const [isChosen, setChosen] = useState(false)
  const [isOpen, { open, close }] = useDisclosure(false, { onOpen: () => setChosen(false) })
  const choose = () => {
    setChosen(true)
    close()
  }
  useHotkeys([['mod+K', open]], [])
  return (
    <>
      <Button
        variant="default"
        size="compact-md"
        onClick={open}
        id="find"
        aria-keyshortcuts="Control+K"
        miw="max-content"
        rightSection={
          <Kbd size="xs" visibleFrom="sm">
            Ctrl K
          </Kbd>
        }
      >
        {words.open}
      </Button>
      {/* A page that was chosen takes the focus itself; the return would come later. */}
      <Modal opened={isOpen} onClose={close} title={words.title} size="lg" returnFocus={!isChosen}>
        <Suspense fallback={<Waiting />}>
          <Search key={String(isOpen)} pages={pages} close={choose} />
        </Suspense>
      </Modal>
    </>
  )
}
