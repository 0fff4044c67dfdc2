/** Names for the items of a list that have none, so that what is typed stays with its item when others go. */
import { useRef } from 'react'

/** One for each item; `drop` is called when the item of that place goes. */
export function useNames(count: number) {
  const list = useRef<number[]>([])
  const next = useRef(0)
  while (list.current.length < count) list.current.push(next.current++)
  list.current.length = count
  return { names: list.current, drop: (place: number) => void list.current.splice(place, 1) }
}
